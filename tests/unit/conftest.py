"""How much generated input the properties see: a run of the tests, or ``make fuzz``.

Hypothesis marks its tests ``hypothesis``; a test with such a function inside has that mark by hand.
"""

import os

from hypothesis import HealthCheck, settings

# A busy machine is no failure of a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
EXAMPLES = int(os.environ.get("THUNDERFLEET_FUZZ_EXAMPLES", "20000"))
settings.register_profile("fuzz", deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unhurried"))
