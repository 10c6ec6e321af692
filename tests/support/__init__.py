"""Code that several tests share: small networks, checks, and scripts that they run."""
