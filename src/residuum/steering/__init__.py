"""Steering: does a direction in activation space control behaviour, or bring the knowledge back?"""
