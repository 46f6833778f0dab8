"""The verdict: records in, one comparison record out. Pure; no torch, no files, no clock."""
