"""Common corruptions: 19 ways in which an image can be bad, each at five severities."""

from multitudes.data.corruptions.corrupt import corrupt as corrupt
from multitudes.data.corruptions.corrupt import corruptions as corruptions
