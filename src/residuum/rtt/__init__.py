"""RTT, retraining on T: does the knowledge come back when someone trains on related facts?"""
