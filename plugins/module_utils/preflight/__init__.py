# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The target half of preflight: what is wanted (:mod:`.wants`), what there is (:mod:`.facts`), what is wrong
(:mod:`.checks`)."""

from __future__ import annotations
