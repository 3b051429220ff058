"""`sweep=optuna`: trials instead of a grid."""
