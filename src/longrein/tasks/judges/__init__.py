"""Hidden tests as programs: standard library only, shipped into the verifier's sandbox as text, run by its python3."""
