"""Plain EC2: instances from launch templates, an increment's node groups each whole or not at all."""
