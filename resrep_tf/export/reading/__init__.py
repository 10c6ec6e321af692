"""Files of a model, read although they may be damaged, of another kind or hostile."""
