"""The report: one self-contained page made from run stores alone; no model is ever loaded here.

Each section of the page is one module with a function from `residuum.report.findings.Findings` to a
`residuum.report.blocks.Section`, or to None when the stores hold nothing for it.
"""
