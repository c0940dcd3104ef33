"""Numbers in sentences."""


def percent(share: float) -> str:
    """A share from 0 to 1 as whole percent, such as "12 %"."""
    return f"{100 * share:.0f} %"
