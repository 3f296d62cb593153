"""Prompts of mixed lengths on real servers: does a long one hold up short ones?"""
