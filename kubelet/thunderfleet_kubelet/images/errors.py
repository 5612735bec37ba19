"""Why an image cannot be pulled."""


class PullError(Exception):
    """The image was not pulled; the message is for the pod's author and has no credentials."""


class Refused(PullError):
    """The registry does not give the image to the owner of these credentials; it may give it to another one."""


class Transient(PullError):
    """The same request may succeed in a moment: the connection broke, or the registry is overloaded."""


class NotContinued(Transient):
    """The registry does not send the rest of a blob; the blob must be fetched from its beginning."""
