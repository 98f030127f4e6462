# SPDX-License-Identifier: Apache-2.0
"""The parts of `cynosure demo`; cynosure.demo puts them together."""
