"""Once and in order, over links that lose, repeat and reorder, between peers that die."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taskd.core.delivery import RESEND_AFTER_S, Channel, Conversations, Packet


def test_messages_arrive_once_and_in_order() -> None:
    """A repeated packet is refused with the reason and acknowledged again; a later one waits for its turn."""
    here, there = Channel[str]("a", "b"), Channel[str]("b", "a")
    one, two = here.send("one", 0.0), here.send("two", 0.0)

    early = there.receive(two, 0.0)
    assert ((), "seq 2 came before 1", True) == (early.messages, early.refused, early.owes_ack)
    assert ("one",) == there.receive(one, 0.0).messages
    again = there.receive(one, 0.0)
    assert ((), "seq 1 was seen before", True) == (again.messages, again.refused, again.owes_ack)
    assert ("two",) == there.receive(two, 0.0).messages


def test_what_is_acknowledged_is_not_sent_again() -> None:
    """An acknowledgement covers everything up to its number."""
    here, there = Channel[str]("a", "b"), Channel[str]("b", "a")
    for text in ("one", "two", "three"):
        packet = here.send(text, 0.0)
        if text != "three":
            there.receive(packet, 0.0)

    here.receive(there.acknowledge(), 0.0)

    assert ("three",) == here.pending
    assert ["three"] == [packet.message for packet in here.resend_all(0.0)]


def test_resending_waits_for_its_time() -> None:
    """Not before the acknowledgement is late, and not again right after."""
    here = Channel[str]("a", "b")
    here.send("one", 10.0)

    assert [] == list(here.resend_due(10.0 + RESEND_AFTER_S / 2))
    assert ["one"] == [packet.message for packet in here.resend_due(10.0 + RESEND_AFTER_S)]
    assert [] == list(here.resend_due(10.0 + RESEND_AFTER_S * 1.5))


def test_a_beat_is_outside_the_numbering() -> None:
    """It is taken whenever it comes, needs no acknowledgement and is never repeated."""
    here, there = Channel[str]("a", "b"), Channel[str]("b", "a")
    beat = here.send_unreliable("alive")

    for _ in range(2):
        received = there.receive(beat, 0.0)
        assert (("alive",), False) == (received.messages, received.owes_ack)
    assert () == here.pending


def test_nothing_of_another_life_is_accepted() -> None:
    """Neither from a former peer nor meant for a former self, and its acknowledgements do not count."""
    here = Channel[str]("a", "b")
    here.send("one", 0.0)

    assert "from incarnation old" in here.receive(Packet("old", "a", 1, 1, "x"), 0.0).refused
    assert "meant for incarnation former" in here.receive(Packet("b", "former", 1, 1, "x"), 0.0).refused
    assert ("one",) == here.pending


def test_a_conversation_that_ended_is_not_taken_up_again() -> None:
    """An announcement may be repeated by a slow link after the agent was given up: it must open a new one."""
    talks = Conversations[str]("m")
    hello = Packet("agent.1", "m", 1, 0, "hello")
    assert talks.find("n", Packet("agent.1", "m", 2, 0, "report"), opens=False) is None
    assert talks.find("n", hello, opens=True) is talks.with_node("n")

    talks.end("n")

    assert talks.find("n", hello, opens=True) is None
    again = talks.find("n", Packet("agent.2", "m", 1, 0, "hello"), opens=True)
    assert again is not None
    assert [("n", again)] == talks.all()


def test_a_new_conversation_takes_the_place_of_the_old_one() -> None:
    """And the old one cannot come back behind it; one meant for another manager opens nothing."""
    talks = Conversations[str]("m")
    first = Packet("agent.1", "m", 1, 0, "hello")
    talks.find("n", first, opens=True)
    second = talks.find("n", Packet("other.1", "m", 1, 0, "hello"), opens=True)

    assert talks.find("n", first, opens=True) is None
    assert talks.find("x", Packet("agent.9", "before", 1, 0, "hello"), opens=True) is None
    assert second is talks.with_node("n")


class BadLink(RuleBasedStateMachine):
    """Two peers, each of which may be born again, over a link that does whatever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.lives = {"a": 1, "b": 1}
        self.now = 0.0
        self.number = 0
        self.flying: list[tuple[str, Packet[int]]] = []
        self.meet()

    def meet(self) -> None:
        """Both sides know of each other's present life: from here the promise holds."""
        names = {side: f"{side}{life}" for side, life in self.lives.items()}
        self.ends = {
            "a": Channel[int](names["a"], names["b"]),
            "b": Channel[int](names["b"], names["a"]),
        }
        self.sent: dict[str, list[int]] = {"a": [], "b": []}
        self.got: dict[str, list[int]] = {"a": [], "b": []}

    @staticmethod
    def other(side: str) -> str:
        return "b" if side == "a" else "a"

    def take(self, side: str, packet: Packet[int]) -> None:
        received = self.ends[side].receive(packet, self.now)
        self.got[side].extend(received.messages)
        if packet.sender != self.ends[side].peer or packet.receiver != self.ends[side].me:
            assert not received.messages
        if received.owes_ack:
            self.flying.append((self.other(side), self.ends[side].acknowledge()))

    @rule(side=st.sampled_from("ab"))
    def send(self, side: str) -> None:
        self.number += 1
        self.sent[side].append(self.number)
        self.flying.append((self.other(side), self.ends[side].send(self.number, self.now)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """Any packet may be next: the link reorders."""
        index = data.draw(st.integers(0, len(self.flying) - 1))
        self.take(*self.flying.pop(index))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.flying.append(self.flying[data.draw(st.integers(0, len(self.flying) - 1))])

    @rule(side=st.sampled_from("ab"), link_is_back=st.booleans())
    def resend(self, side: str, link_is_back: bool) -> None:
        self.now += 2 * RESEND_AFTER_S
        end = self.ends[side]
        packets = end.resend_all(self.now) if link_is_back else end.resend_due(self.now)
        self.flying.extend((self.other(side), packet) for packet in packets)

    @rule(side=st.sampled_from("ab"))
    def rebirth(self, side: str) -> None:
        """What flies stays in the air: it must not be taken by the new pair."""
        self.lives[side] += 1
        self.meet()

    @invariant()
    def in_order_and_once(self) -> None:
        for side in "ab":
            got = self.got[side]
            assert got == self.sent[self.other(side)][: len(got)]

    def teardown(self) -> None:
        """A link that works again delivers everything, and then nothing is pending."""
        for _ in range(4):
            for side in "ab":
                self.flying.extend(
                    (self.other(side), packet) for packet in self.ends[side].resend_all(self.now)
                )
            flying, self.flying = self.flying, []
            for where, packet in flying:
                self.take(where, packet)
        for side in "ab":
            assert self.got[side] == self.sent[self.other(side)]
            assert () == self.ends[side].pending


TestBadLink = BadLink.TestCase
TestBadLink.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
