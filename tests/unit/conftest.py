"""How much generated input the properties see: a run of the tests, or ``make fuzz``.

Hypothesis marks its tests ``hypothesis``; a test with such a function inside has that mark by hand. See
``tests.support.generated`` for tests with a number of their own.
"""

import os

from hypothesis import HealthCheck, settings

from tests.support.generated import EXAMPLES

# A busy machine is no failure of a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unhurried"))
