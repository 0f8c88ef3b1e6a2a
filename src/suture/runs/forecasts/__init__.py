"""What a plan will cost, before anything runs."""

from suture.runs.forecasts.forecast import Forecast, affordable, forecast

__all__ = ["Forecast", "affordable", "forecast"]
