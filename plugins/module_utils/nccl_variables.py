# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL reads from its environment: names, values, replacements. Data only; the rules are in nccl_lint.

Names: those that the libraries of NCCL 2.28.9 and 2.32.3 contain, and those of its user guide. Kinds and ranges: the
user guide and the sources up to 2.32. A variable without a kind is known by name only: its value is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

NEWEST = "2.32"  # the newest NCCL that this data was compared with

# Buffers of one receive connection and channel, in bytes (NCCL allocates all three, whatever NCCL_PROTO allows).
LL_BUFFER = 512 * 1024
LL128_BUFFER = 120 * 640 * 8 * 8
SIMPLE_BUFFER = 4 * 1024 * 1024


@dataclass(frozen=True)
class Variable:
    """What is known of one variable."""

    kind: str = ""  # integer, choice, level, tokens, path, text, secret; "" when only the name is known
    low: int | None = None
    high: int | None = None
    multiple_of: int = 1
    choices: tuple[str, ...] = ()
    any_case: bool = False  # whether NCCL ignores the case of its choices or tokens
    deprecated: str = ""  # the NCCL release since which it is
    removed: str = ""  # the NCCL release since which it is not read any more
    instead: str = ""  # the variable that took its place
    note: str = ""  # what else a person should know about a refused value


_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
_SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY", "NVLS"),
    *("BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
ALGORITHMS = ("Ring", "Tree", "CollnetChain", "CollnetDirect", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
SUBSYSTEMS_PER_COLLECTIVE = ("COLL", "TUNING", "CALL", "P2P", "PROXY", "ALL")

# Read by PyTorch's NCCL process group under these old names; NCCL itself never sees them.
PYTORCH = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_HIGH_PRIORITY": "TORCH_NCCL_HIGH_PRIORITY",
    "NCCL_TRACE_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
}

_FLAGS = """
    ALLOC_P2P_NET_LL_BUFFERS COLLNET_ENABLE COMM_BLOCKING CUMEM_ENABLE CUMEM_HOST_ENABLE DMABUF_ENABLE
    GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER
    GRAPH_STREAM_ORDERING IB_ADAPTIVE_ROUTING IB_DISABLE IB_ECE_ENABLE IB_EVENT_BASED_LB IB_MERGE_NICS IB_OOO_RQ
    IB_RETURN_ASYNC_EVENTS IB_SPLIT_DATA_ON_QPS IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_NET_MISMATCH
    IPC_USE_ABSTRACT_SOCKET LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LOCAL_REGISTER
    MEM_SYNC_DOMAIN MULTI_RANK_GPU_ENABLE NET_GDR_C2C NET_GDR_READ NET_SHARED_BUFFERS NET_SHARED_COMMS NVB_DISABLE
    OOB_NET_ENABLE P2P_DIRECT_DISABLE P2P_DISABLE PXN_C2C PXN_DISABLE RAS_ENABLE RMA_EAGER_INIT RUNTIME_CONNECT
    SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SYM_GIN_KERNELS_ENABLE WIN_ENABLE
"""
_RANGES = {
    "CGA_CLUSTER_SIZE": (0, 8),
    "COLLNET_NODE_THRESHOLD": (0, None),
    "CROSS_NIC": (0, 2),
    "IB_AR_THRESHOLD": (0, None),
    "IB_FIFO_TC": (0, 255),
    "IB_GID_INDEX": (-1, None),
    "IB_PCI_RELAXED_ORDERING": (0, 2),
    "IB_PKEY": (0, None),
    "IB_PKEY_VALUE": (-1, 65535),
    "IB_QPS_PER_CONNECTION": (1, 128),
    "IB_RETRY_CNT": (0, 7),
    "IB_ROCE_VERSION_NUM": (1, 2),
    "IB_SL": (0, 15),
    "IB_TC": (0, 255),
    "IB_TIMEOUT": (0, 31),
    "LL128_BUFFSIZE": (1, None),
    "LL_BUFFSIZE": (1, None),
    "MAX_CTAS": (1, 64),
    "MAX_P2P_NCHANNELS": (1, 64),
    "MIN_CTAS": (1, 64),
    "MIN_P2P_NCHANNELS": (1, 64),
    "MNNVL_CLIQUE_ID": (None, None),
    "MNNVL_ENABLE": (0, 2),
    "MNNVL_UUID": (None, None),
    "NSOCKS_PERTHREAD": (1, 64),
    "NVLS_ENABLE": (0, 2),
    "P2P_LL_THRESHOLD": (0, None),
    "P2P_NET_CHUNKSIZE": (1, None),
    "P2P_PXN_LEVEL": (0, 2),
    "SOCKET_NTHREADS": (1, 16),
    "SOCKET_POLL_TIMEOUT_MSEC": (0, None),
    "SOCKET_RETRY_CNT": (1, None),
    "SOCKET_RETRY_SLEEP_MSEC": (1, None),
    "UID_STAGGER_RATE": (1, None),
    "UID_STAGGER_THRESHOLD": (1, None),
}
_TEXTS = """
    COMM_ID CTA_POLICY DEBUG_LEVELS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS ENV_PLUGIN GIN_PLUGIN HOSTID
    IBVERBS_LIB IB_ADDR_RANGE IB_HCA IB_RAIL_POLICY NET NETDEVS_POLICY NET_PLUGIN NO_CACHE OOB_NET_IFNAME
    PROFILER_PLUGIN RAS_ADDR RAS_TIMEOUT_FACTOR RMA_PLUGIN SOCKET_IFNAME SOCKET_MAGIC TUNER_PLUGIN
"""
_PATHS = "CONF_FILE DEBUG_FILE GRAPH_DUMP_FILE GRAPH_FILE TOPO_DUMP_FILE TOPO_FILE"
_SPECIAL = {
    "ALGO": Variable("tokens", choices=ALGORITHMS, any_case=True),
    "BUFFSIZE": Variable("integer", 1, note="it is in bytes, without a unit"),
    "CHECKS_DISABLE": Variable("integer", removed="2.3"),
    "CHECK_MODE": Variable("choice", choices=("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL")),
    "CHECK_POINTERS": Variable("integer", 0, 1, deprecated="2.29.7", instead="NCCL_CHECK_MODE"),
    "DEBUG": Variable("choice", choices=("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"), any_case=True),
    "DEBUG_SUBSYS": Variable("tokens", choices=_SUBSYSTEMS, any_case=True),
    "IB_ADDR_FAMILY": Variable("choice", choices=("AF_INET", "AF_INET6")),
    "IB_CUDA_SUPPORT": Variable("integer", removed="2.4", instead="NCCL_NET_GDR_LEVEL"),
    "IB_GDR_LEVEL": Variable("level", removed="2.4", instead="NCCL_NET_GDR_LEVEL"),
    "LAUNCH_MODE": Variable("choice", choices=("PARALLEL", "GROUP"), deprecated="2.9"),
    "LL128_NTHREADS": Variable("integer", 64, 640, 32),
    "LL_THRESHOLD": Variable("integer", removed="2.5", instead="NCCL_PROTO"),
    "MAX_NCHANNELS": Variable("integer", 1, deprecated="2.17", instead="NCCL_MAX_CTAS"),
    "MAX_NRINGS": Variable("integer", 1, deprecated="2.5", instead="NCCL_MAX_CTAS"),
    "MIN_NCHANNELS": Variable("integer", 1, deprecated="2.17", instead="NCCL_MIN_CTAS"),
    "MIN_NRINGS": Variable("integer", 1, deprecated="2.5", instead="NCCL_MIN_CTAS"),
    "NET_GDR_LEVEL": Variable("level", choices=tuple(level for level in _LEVELS if level != "NVL")),
    "NET_MERGE_LEVEL": Variable("level", choices=tuple(level for level in _LEVELS if level != "NVL")),
    "NET_MERGE_POLICY": Variable("choice", choices=("ALL", "RAIL")),
    "NTHREADS": Variable("integer", 64, 512, 32, note="NCCL says 'Invalid NCCL_NTHREADS' and takes its default"),
    "P2P_LEVEL": Variable("level", choices=_LEVELS),
    "PROTO": Variable("tokens", choices=PROTOCOLS, any_case=True),
    "PSK": Variable("secret"),
    "RINGS": Variable("text", removed="2.5", instead="NCCL_GRAPH_FILE"),
    "SINGLE_RING_THRESHOLD": Variable("integer", removed="2.3"),
    "SOCKET_FAMILY": Variable("choice", choices=("AF_INET", "AF_INET6")),
    "TREE_THRESHOLD": Variable("integer", removed="2.5", instead="NCCL_ALGO"),
}
# Not in the user guide: in the library of at least one of the two releases.
_OTHERS = """
    ALLGATHERV_ENABLE CE_CHUNK_SIZE CE_COLL_AG_MULTICAST_THRESHOLD CE_INTRA_GPU_MEMCPY_ENABLE CFT_ENABLE
    CFT_MULTIMEM CHUNK_SIZE COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONNECT_ROUND_MAX_PEERS
    DEV_API_JIT DIAGNOSTICS_ECC_THRESHOLD DIAGNOSTICS_IB_BW_TIMEOUT DISABLE_MEM_MANAGER ELASTIC_BUFFER_REGISTER
    ENABLE_VERSION_CHECK ENQUEUE_REARCH_ENABLE GDAKI_FORCE_MCST GDAKI_USE_RELIABLE_DB GDRCOPY_USE_INTERNAL_DMABUF
    GDR_FLUSH_DISABLE GIN_COUNTER_POOL_SIZE GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_GDAKI_LAG_AWARE_DISABLE
    GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_OOO_OPT
    GIN_IB_TC GIN_NCONNECTIONS GIN_NCONTEXTS GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH GIN_PROXY_QUEUE_SIZE
    GIN_SIGNAL_POOL_SIZE GIN_TYPE GRAPH_DUMP_FILE_RANK GRAPH_HELPER_DISABLE GROUP_CUDA_STREAM
    HIER_CE_COLL_AG_RAIL_RING_ENABLE HIER_CE_COLL_NUM_CTX IB_DATA_DIRECT IB_DEVICE_PCI_ORDER
    IB_EVENT_BASED_LB_REMOTE IB_MERGE_VFS IB_MLX_VENDOR_ID IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC
    IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QUERY_PORT_SPEED IB_RECEIVER_SIDE_MATCHING_SCHEME
    IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY
    IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
    IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_ROUTABLE_FLID_GID_INDEX
    IB_SORT_MERGE_NICS IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_USE_INLINE IB_VR_RAILS_PER_SOCKET
    IB_VR_SOCKET_COUNT IB_WARN_RAIL_LOCAL IB_WQE_LATENCY_REPORT IB_WQE_LATENCY_THRESHOLD_NS IGNORE_DISABLED_P2P
    L1_SHARED_MEMORY_CARVEOUT LL128_C2C LSA_TEAM_SIZE MNNVL_CROSS_CLIQUE MNNVL_RAIL_PER_HOST
    MNNVL_SCATTER_NETS_ENABLE MULTI_SEGMENT_REGISTER NCHANNELS_PER_NET_PEER NET_DISABLE_INTRA NET_FORCE_FLUSH
    NET_FORCE_MERGE NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NUM_RMA_CTX NUM_RMA_INT_CTX NVB_PRECONNECT
    NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_NCHANNELS NVLS_UB_SIZE NVTX_DISABLE
    P2P_EPOCH_ENABLE P2P_MAX_PEERS P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW
    P2P_PER_CHANNEL_REG_NET_BW P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY PARAM_DUMP_ALL PAT_ENABLE
    PAT_NDIMS PROGRESS_APPENDOP_FREQ PROGRESS_COUNTERS PROGRESS_COUNTER_MONITOR_POLL_MS
    PROGRESS_COUNTER_MONITOR_STALE_MS PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC PROXY_APPEND_BATCH_SIZE PROXY_CPUSET
    PROXY_DUMP_SIGNAL REPORT_CONNECT_PROGRESS RMA_DISABLE RMA_IB_WR_BATCHSIZE RMA_MULTI_CTX_THRESHOLD
    RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE RUN_DIAGNOSTICS RUN_RAS_DIAGNOSTICS SET_CPU_STACK_SIZE
    SHADOW_MEMPOOL_MAX_SIZE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE
    SOCKET_INLINE SOCKET_MIN_TASKSIZE SOCKET_RCVBUF SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_CTAS SYM_KERNEL
    SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE THREAD_THRESHOLDS
    TOPO_DUMP_FILE_RANK TOPO_SPLIT_MLOPART UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_STRIDE WORK_ARGS_BYTES
    WORK_FIFO_BYTES
"""


def _known() -> dict[str, Variable]:
    found = {name: Variable() for name in _OTHERS.split()}
    found.update((name, Variable("integer", 0, 1)) for name in _FLAGS.split())
    found.update((name, Variable("integer", low, high)) for name, (low, high) in _RANGES.items())
    found.update((name, Variable("text")) for name in _TEXTS.split())
    found.update((name, Variable("path")) for name in _PATHS.split())
    found.update(_SPECIAL)
    return {f"NCCL_{name}": about for name, about in found.items()}


KNOWN: dict[str, Variable] = _known()
