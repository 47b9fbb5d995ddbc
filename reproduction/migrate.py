"""Brings committed records to today's config fields."""
