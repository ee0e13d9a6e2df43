"""The exception for what the user can fix. Used everywhere."""


class UserError(Exception):
    """Something that the user gave cannot be used; the message names the place and what was expected."""

    beside: tuple["UserError", ...] = ()
    """Further errors in the same section."""

    def lines(self) -> list[str]:
        """This message and those in ``beside``, one line each."""
        return [str(self), *(line for other in self.beside for line in other.lines())]
