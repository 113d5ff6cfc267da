# Copyright: Groundstate contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Python environments from a lock: requirements, interpreters, installers, extras, and their life on disk."""
