"""Meta-evaluation: which metric can be trusted? Faithfulness over pools of models, robustness under attacks."""
