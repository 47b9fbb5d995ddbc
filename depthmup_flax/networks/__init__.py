"""The user's own network, loss and data: their names, their fields, and adapters for every library they come from."""
