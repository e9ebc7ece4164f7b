"""Rules over domains: linear constraints over how many pods each row serves. Compiled by `rows`, read by `claims`.

Nothing here knows of nodes or patterns: a row stands for pods in one domain already (see `rows`). Numbers of pods are
sums over (row, pods per unit) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Rows = tuple[tuple[int, int], ...]
"""(row, pods that count per unit of the row)."""
LinearTerm = tuple[int, int]
"""(variable, coefficient)."""


def value_of(terms: Sequence[LinearTerm], values: Sequence[int]) -> int:
    """The value of a sum of terms."""
    return sum(values[variable] * coefficient for variable, coefficient in terms)


@dataclass(slots=True)
class Linear:
    """Non-negative integer variables with upper bounds, and linear constraints over them."""

    uppers: list[int] = field(default_factory=list)
    rows: list[tuple[tuple[LinearTerm, ...], int | None, int | None]] = field(default_factory=list)
    """(terms, lower bound or None, upper bound or None)."""
    follows: list[tuple[int, Callable[[Sequence[int]], int]]] = field(default_factory=list)
    """Variables that rules introduce, in order, and the value that suits given values of those before them best."""

    def variable(self, upper: int, follows: Callable[[Sequence[int]], int] | None = None) -> int:
        self.uppers.append(upper)
        if follows is not None:
            self.follows.append((len(self.uppers) - 1, follows))
        return len(self.uppers) - 1

    def constrain(self, terms: Sequence[LinearTerm], lower: int | None, upper: int | None) -> None:
        self.rows.append((tuple(terms), lower, upper))

    def most(self, terms: Sequence[LinearTerm]) -> int:
        """The largest value of a sum with positive coefficients."""
        return sum(self.uppers[variable] * coefficient for variable, coefficient in terms)

    def complete(self, values: list[int]) -> None:
        """Sets the variables that rules introduced by the others."""
        for variable, follows in self.follows:
            values[variable] = follows(values)

    def kept(self, values: Sequence[int]) -> bool:
        """Whether the values keep every bound and constraint."""
        return all(0 <= value <= upper for value, upper in zip(values, self.uppers, strict=True)) and all(
            (lower is None or total >= lower) and (upper is None or total <= upper)
            for total, lower, upper in ((value_of(terms, values), lower, upper) for terms, lower, upper in self.rows)
        )

    def whether_any(self, terms: Sequence[LinearTerm]) -> int:
        """A variable that is 1 where the sum is positive (it may be 1 elsewhere)."""
        present = self.variable(1, lambda values: int(any(values[variable] for variable, _ in terms)))
        self.constrain([*terms, (present, -self.most(terms))], None, 0)
        return present


Terms = Callable[[Rows], list[LinearTerm]]
"""Turns sums over rows into sums over the variables behind them."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Anti-affinity in one domain: with any carrier in it, at most `most` counted pods."""

    carriers: Rows
    counted: Rows
    most: int

    def parts(self) -> tuple[Rows, ...]:
        """What the rule tells apart: units that are in the same parts as often are alike to it."""
        return self.carriers, self.counted

    def emit(self, linear: Linear, terms_of: Terms) -> None:
        carriers, counted = terms_of(self.carriers), terms_of(self.counted)
        if not carriers or not counted:
            return
        if {row for row, _ in self.counted} <= {row for row, _ in self.carriers}:
            linear.constrain(counted, None, self.most)
            return
        present = linear.whether_any(carriers)
        spare = max(0, linear.most(counted) - self.most)
        linear.constrain([*counted, (present, spare)], None, self.most + spare)


@dataclass(frozen=True, slots=True)
class Beside:
    """Affinity in one domain: with any carrier in it, at least one helper."""

    carriers: Rows
    helpers: Rows

    def parts(self) -> tuple[Rows, ...]:
        return self.carriers, self.helpers

    def emit(self, linear: Linear, terms_of: Terms) -> None:
        carriers = terms_of(self.carriers)
        if carriers:
            present = linear.whether_any(carriers)
            linear.constrain([*terms_of(self.helpers), (present, -1)], 0, None)


@dataclass(frozen=True, slots=True)
class OneDomain:
    """Affinity of pods to themselves where none runs yet: carriers in at most one of the domains."""

    domains: tuple[Rows, ...]

    def parts(self) -> tuple[Rows, ...]:
        return self.domains

    def emit(self, linear: Linear, terms_of: Terms) -> None:
        present = [linear.whether_any(terms) for terms in map(terms_of, self.domains) if terms]
        if len(present) > 1:
            linear.constrain([(variable, 1) for variable in present], None, 1)


@dataclass(frozen=True, slots=True)
class WithFirst:
    """Affinity of pods to themselves where none runs yet: with any carrier in a domain, at least one of the others that
    it counts, if any of these is placed at all."""

    domains: tuple[tuple[Rows, Rows], ...]
    """Carriers and others in each: one rule for all of them, as it looks at those anywhere."""
    anywhere: Rows

    def parts(self) -> tuple[Rows, ...]:
        return *(rows for domain in self.domains for rows in domain), self.anywhere

    def emit(self, linear: Linear, terms_of: Terms) -> None:
        anywhere = terms_of(self.anywhere)
        domains = [(carriers, here) for mine, here in self.domains if (carriers := terms_of(mine))]
        if domains and anywhere:
            placed = linear.whether_any(anywhere)
            for carriers, here in domains:
                linear.constrain([*terms_of(here), (linear.whether_any(carriers), -1), (placed, -1)], -1, None)


@dataclass(frozen=True, slots=True)
class SpreadDomain:
    carriers: Rows
    counted: Rows
    kept: Rows
    """Counted pods of which there may be too many: all, or those of carriers where others come last."""
    running: int
    """Counted pods that run there."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Topology spread: in a domain with any planned carrier, counted pods exceed the emptiest domain's by at most
    `max_skew`."""

    domains: tuple[SpreadDomain, ...]
    max_skew: int
    from_zero: bool
    """Whether there are fewer domains than asked for, so that the emptiest counts as empty."""

    def parts(self) -> tuple[Rows, ...]:
        return tuple(rows for each in self.domains for rows in (each.carriers, each.counted, each.kept))

    def emit(self, linear: Linear, terms_of: Terms) -> None:
        counted = [terms_of(domain.counted) for domain in self.domains]
        emptiest = []
        if not self.from_zero:
            sums = [(domain.running, terms) for domain, terms in zip(self.domains, counted, strict=True)]
            level = linear.variable(
                min((running + linear.most(terms) for running, terms in sums), default=0),
                lambda values: min((running + value_of(terms, values) for running, terms in sums), default=0),
            )
            emptiest = [(level, -1)]
            for domain, terms in zip(self.domains, counted, strict=True):
                linear.constrain([*terms, (level, -1)], -domain.running, None)
        for domain in self.domains:
            carriers, terms = terms_of(domain.carriers), terms_of(domain.kept)
            if not carriers:
                continue
            if {row for row, _ in domain.kept} <= {row for row, _ in domain.carriers} and (
                domain.running <= self.max_skew
            ):
                # Without a carrier there is nothing but what runs, which is within the skew.
                linear.constrain([*terms, *emptiest], None, self.max_skew - domain.running)
                continue
            present = linear.whether_any(carriers)
            spare = max(0, domain.running + linear.most(terms) - self.max_skew)
            linear.constrain([*terms, *emptiest, (present, spare)], None, self.max_skew - domain.running + spare)


Rule = Apart | Beside | OneDomain | WithFirst | Spread
