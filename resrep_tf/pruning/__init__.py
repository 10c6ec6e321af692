"""The method: compactors, gradient resetting, selection and the wrapped model."""
