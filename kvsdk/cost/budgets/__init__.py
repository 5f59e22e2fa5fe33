"""Budgets: `budget` is what may be spent, `account` what was and is being, `spent` what the ledger knows."""
