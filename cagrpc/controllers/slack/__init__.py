"""The resource slack in a cluster: what is held in reserve, where, and who carries it. The one way in is
`SlackController`."""
