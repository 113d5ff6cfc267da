# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fingerprint of a host: the state that can explain a number.

One file a section; each has ``read(...)``, a pure reader that returns the section and puts a reason into ``unknown``
for every value that it could not read (and that is None in the section then). What is in a section is hashed, so it
must not change while nothing changes; what comes and goes (load, temperatures, uptime) belongs to :mod:`.conditions`.
:func:`.take.take` puts them together, :func:`.explain.explain` says what differs between two.
"""

from __future__ import annotations
