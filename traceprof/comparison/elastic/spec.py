"""What is told of a job whose ranks come and go."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same

__all__ = ["ABOUT", "EPOCHS", "PARTS", "RESTARTS", "TIMELINE", "TIMELINE_NAME"]

TIMELINE_NAME: Final = "job-timeline"
"""What the result is called that the chart is drawn of."""

_RUN: Final = key("run", "the job")

PARTS: Final = ResultSpec(
    tables=(
        TableSpec(
            "parts",
            "what the job's time was, from its first process to its last: adds up to the total",
            (
                key("part", "what"),
                derived("base_ns", Unit.NS, "how long in the base"),
                derived("duration_ns", Unit.NS, "how long"),
                derived("share_ratio", Unit.RATIO, "of the whole job"),
                derived("difference_ns", Unit.NS, "how much longer than in the base"),
            ),
        ),
    )
)

RESTARTS: Final = ResultSpec(
    tables=(
        TableSpec(
            "restarts",
            "each time that training stopped and began again",
            (
                _RUN,
                key("restart", "its number", Unit.NUMBER),
                same("epoch", Unit.NUMBER, "the epoch at which training went on"),
                derived("lost_ns", Unit.NS, "time lost: until training was where it had been"),
                derived("redone_ns", Unit.NS, "of it steps whose work was lost"),
                derived("noticing_ns", Unit.NS, "of it until agents noticed"),
                derived("rendezvous_ns", Unit.NS, "of it until the agents had met"),
                derived("failed_ns", Unit.NS, "of it starts that never trained"),
                derived("initialisation_ns", Unit.NS, "of it initialisation of the workers"),
                derived("loading_ns", Unit.NS, "of it loading checkpoints"),
                derived("setup_ns", Unit.NS, "of it set-up of the program otherwise"),
                derived("unexplained_ns", Unit.NS, "of it nothing explains"),
                derived(
                    "beyond_ns",
                    Unit.NS,
                    "of its epoch, beside the lost time, what a typical one does not take",
                ),
                derived("redone_count", Unit.COUNT, "how many steps were made again"),
                same("life", Unit.NUMBER, "which start of the program went on"),
                same("at_ns", Unit.AT_NS, "up to when work was not lost"),
                same("why", Unit.TEXT, "why, as the agents or the ranks' ends tell"),
                same("ranks_before_count", Unit.COUNT, "ranks before"),
                same("ranks_after_count", Unit.COUNT, "ranks after"),
            ),
        ),
    ),
    scalars=(
        derived("lost_ns", Unit.NS, "time lost at all restarts"),
        derived("explained_ns", Unit.NS, "of it explained"),
        derived("unexplained_ns", Unit.NS, "of it not explained"),
    ),
)

EPOCHS: Final = ResultSpec(
    tables=(
        TableSpec(
            "epochs",
            "the epochs whose work was kept, against a typical one beside each",
            (
                key("epoch", "its number", Unit.NUMBER),
                derived("base_ns", Unit.NS, "how long it took in the base"),
                derived("duration_ns", Unit.NS, "how long it took"),
                derived("difference_ns", Unit.NS, "how much longer than in the base"),
                derived("lost_ns", Unit.NS, "time lost at a restart, in it"),
                derived(
                    "typical_ns",
                    Unit.NS,
                    "the median undisturbed epoch after it until the next restart, before it where "
                    "none follows",
                ),
                derived("typical_of", Unit.TEXT, "the epochs that are typical for it"),
                derived("beyond_ns", Unit.NS, "what neither of the two explains"),
                derived("accuracy", Unit.NUMBER, "the accuracy after it"),
                derived("base_accuracy", Unit.NUMBER, "that of the base"),
                derived("ranks_count", Unit.COUNT, "ranks"),
                derived("steps_count", Unit.COUNT, "steps"),
                derived("life", Unit.NUMBER, "which start of the program made it"),
            ),
        ),
    )
)

TIMELINE: Final = ResultSpec(
    tables=(
        TableSpec(
            "timeline",
            "what happened, in its order",
            (
                _RUN,
                key("number", "its number", Unit.NUMBER),
                derived("at_ns", Unit.AT_NS, "when"),
                derived("duration_ns", Unit.NS, "how long"),
                derived("what", Unit.TEXT, "what happened"),
                derived("life", Unit.NUMBER, "in which life"),
                derived("epoch", Unit.NUMBER, "in which epoch"),
                derived("rank", Unit.NUMBER, "to which rank"),
                derived("node", Unit.TEXT, "on which node"),
                derived("ranks_count", Unit.COUNT, "ranks after it"),
                derived("text", Unit.TEXT, "what was said of it"),
            ),
        ),
    ),
)

ABOUT: Final = {
    "parts": "where the job's time went",
    "restarts": "what each restart cost, and why",
    "epochs": "epoch by epoch",
    TIMELINE_NAME: "what happened when",
}
