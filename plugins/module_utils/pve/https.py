# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The API of a node over HTTPS, with a password or a token, through proxmoxer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .api import ApiError, PveError

try:
    import requests
    from proxmoxer import ProxmoxAPI
    from proxmoxer.core import AuthenticationError, ResourceException

    MISSING = ""
except ImportError as error:
    MISSING = str(error)

RETRIES = 3


class Https:
    """A node over HTTPS. ``verify``: True, False, or the path of the authority's certificate."""

    shell = None

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        token_id: str,
        token_secret: str,
        verify: bool | str,
        timeout_s: float,
    ):
        if MISSING:
            raise PveError(
                f"transport https needs proxmoxer and requests where the module runs ({MISSING}): install them there, "
                "or run it on the node with transport local, which needs nothing"
            )
        self.host = host
        secrets = {"token_name": token_id, "token_value": token_secret} if token_id else {"password": password}
        self._arguments: dict[str, Any] = {
            "port": port,
            "user": user,
            "verify_ssl": verify,
            "timeout": timeout_s,
            **secrets,
        }
        self.who = f"{user}!{token_id} (an API token)" if token_id else user
        self.is_root = user == "root@pam" and not token_id
        self._client: Any = None

    def call(self, method: str, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """See :class:`api.Api`. An expired ticket is renewed once; a read is repeated after a broken connection."""
        tried = 0
        while True:
            tried += 1
            try:
                return self._once(method, path, parameters)
            except ResourceException as error:
                # PVE refuses an expired ticket before it does anything, so that every call may be repeated.
                if error.status_code == 401 and tried == 1 and "password" in self._arguments:
                    self._client = None
                    continue
                errors = error.errors if isinstance(error.errors, dict) else {}
                inner = errors.get("errors")
                raise ApiError(error.status_code, str(error.content or ""), errors if inner is None else {}) from error
            except AuthenticationError as error:
                raise ApiError(401, str(error)) from error
            except requests.exceptions.SSLError as error:
                raise PveError(
                    f"the certificate of {self.host} is not one that is trusted here: give api_ca_path (the node's "
                    f"/etc/pve/pve-root-ca.pem), or validate_certs: false where anyone may listen ({error})"
                ) from error
            except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
                if method == "GET" and tried < RETRIES:
                    time.sleep(0.5 * tried)
                    continue
                raise PveError(
                    f"{self.host} does not answer: check api_host, api_port and the network ({error})"
                ) from error
            except (requests.exceptions.RequestException, ValueError, LookupError, TypeError) as error:
                # A proxy or a portal in between answers with a page, to which proxmoxer has no answer itself.
                raise PveError(
                    f"what answers at {self.host} is no Proxmox VE API: check api_host and api_port "
                    f"({type(error).__name__}: {str(error)[:200]})"
                ) from error

    def _once(self, method: str, path: str, parameters: Mapping[str, str] | None) -> Any:
        if self._client is None:
            self._client = ProxmoxAPI(self.host, **self._arguments)
        resource = self._client(path.strip("/"))
        return getattr(resource, method.lower())(**dict(parameters or {}))
