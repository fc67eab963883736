"""For tests that make sense on one of the databases only."""

from __future__ import annotations

import pytest

only_sqlite = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
only_postgres = pytest.mark.parametrize(
    "dialect", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
