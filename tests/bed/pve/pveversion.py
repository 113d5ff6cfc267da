"""Stand-in for pveversion."""

from pvesh import VERSION

print(f"pve-manager/{VERSION['version']}/{VERSION['repoid']} (running kernel: stand-in)")
