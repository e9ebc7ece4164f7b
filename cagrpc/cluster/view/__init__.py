"""The cluster view: objects reduced to what planning reads, as they change."""
