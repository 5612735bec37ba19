"""The operator: a ModelDeployment becomes a placement, runner pods, and a status that says what is waited for."""
