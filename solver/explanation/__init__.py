"""Why a plan is as it is: irreducible cores, smallest changes, and what other node groups would cost."""
