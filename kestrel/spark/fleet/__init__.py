"""Looking after many folders at a time: verified, packed, exported, imported."""
