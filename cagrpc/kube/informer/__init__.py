"""Informers, which list and watch resources."""
