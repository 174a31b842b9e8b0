"""The report: one self-contained HTML page that compares runs."""

from multitudes.report.page import report as report
