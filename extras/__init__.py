"""Packages on top of dfl: what of other frameworks a federation trains as it is."""
