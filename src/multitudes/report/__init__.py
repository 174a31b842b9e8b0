"""The report: runs side by side on one page that needs nothing but itself."""

from multitudes.report.page import report as report
