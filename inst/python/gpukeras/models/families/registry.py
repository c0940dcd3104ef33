"""All families by name."""

from __future__ import annotations

from collections.abc import Mapping

from gpukeras.models.families.base import Likelihood, Origin
from gpukeras.models.families.classes import Binomial, MultiLabel, Multinomial, Ordinal
from gpukeras.models.families.continuous import Beta, Gamma, Gaussian, Quantile
from gpukeras.models.families.counts import NegativeBinomial, Poisson, ZeroInflatedPoisson
from gpukeras.models.families.spec import Family
from gpukeras.models.families.survival import Cox, DiscreteTime

LIKELIHOODS: Mapping[str, Likelihood] = {
    "gaussian": Gaussian(),
    "quantile": Quantile(),
    "poisson": Poisson(),
    "negative_binomial": NegativeBinomial(),
    "zero_inflated_poisson": ZeroInflatedPoisson(),
    "gamma": Gamma(),
    "beta": Beta(),
    "binomial": Binomial(),
    "multinomial": Multinomial(),
    "multi_label": MultiLabel(),
    "ordinal": Ordinal(),
    "cox": Cox(),
    "discrete_time": DiscreteTime(),
}


def first_origin(family: Family) -> Origin:
    """Returns where the training of a family starts."""
    return likelihood(family).first_origin(family)


def likelihood(family: Family) -> Likelihood:
    """Returns the likelihood of a family."""
    return LIKELIHOODS[family.name]
