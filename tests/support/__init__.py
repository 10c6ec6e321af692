"""What several tests need: small networks, checks, and scripts run beside them."""
