"""What the tests of recordings themselves leave behind: nothing, whatever happens."""

import pytest

from tests.recording.conftest import environment_of_test, finished


def test_a_recorder_that_takes_too_long_is_ended_with_what_has_left_its_group(tmp_path):
    """The fixture no_orphans, too, looks whether anything is left."""
    command = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]
    with pytest.raises(pytest.fail.Exception, match="not done after"):
        finished(command, tmp_path, environment_of_test(), timeout_s=0.5)
