"""OpenAI's wire format, read only as far as routing and metering need it; all other bytes pass through."""
