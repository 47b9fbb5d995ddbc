"""Forecasts that were registered before their targets were trained."""
