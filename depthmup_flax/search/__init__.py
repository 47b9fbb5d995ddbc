"""Many runs: sweeps, searches, forecasts, studies."""
