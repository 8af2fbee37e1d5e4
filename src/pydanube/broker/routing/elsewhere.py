"""What each part of the broker does with a topic that another broker owns.

`OpenTopics` opens only topics of this broker and raises `NotOwner` for any other. This module says what each caller
makes of that; a test compares the list with the modules that open topics or read the records of streams.
"""

from __future__ import annotations

from enum import Enum


class Then(Enum):
    REFUSE = "The caller gets `NotOwner` with the address of the owner, and asks there."
    KEEP = "The work stays here and is tried again until this broker owns the topic or can ask its owner."
    LEAVE = "The work is the owner's, so this broker leaves the topic out."
    ANYONE = "It needs no owner: it reads what the metadata says, or removes what has no topic any more."


ELSEWHERE: dict[str, tuple[Then, str]] = {
    "door/session.py": (Then.REFUSE, "producers, consumers and readers"),
    "door/verbs/storage.py": (Then.REFUSE, "what is stored where, uploads and merges"),
    "door/verbs/subscriptions.py": (Then.REFUSE, "managing subscriptions: one partition elsewhere refuses the whole"),
    "door/verbs/topics.py": (Then.REFUSE, "describing and truncating: one partition elsewhere refuses the whole"),
    "serving/explaining.py": (Then.REFUSE, "why a message is not delivered: only the owner knows"),
    "serving/redrive.py": (Then.REFUSE, "reading dead letters: they are acknowledged where they are"),
    "serving/salvage.py": (Then.REFUSE, "damage that is accepted, and what is missing"),
    "serving/dead_letters.py": (Then.KEEP, "a dead letter: its message stays unacknowledged"),
    "serving/republish.py": (Then.KEEP, "a redriven letter: its batch stays noted"),
    "serving/spreading.py": (Then.KEEP, "a change of all partitions: it stays in the metadata"),
    "commit/sinks.py": (Then.KEEP, "a job's decision, its staged rows and their cleaning up"),
    "commit/participant.py": (Then.KEEP, "filling a partition: the decision stays in the metadata"),
    "serving/reopening.py": (Then.LEAVE, "opening topics after a start"),
    "serving/open_topics.py": (Then.LEAVE, "counting bytes of a namespace: sealed ones count, and nothing is opened"),
    "serving/leftovers.py": (Then.ANYONE, "removing the streams of deleted topics"),
    "lost_node.py": (Then.ANYONE, "a command for a stopped broker"),
}
