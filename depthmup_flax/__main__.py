"""``python -m depthmup_flax`` is the command ``depthmup``."""

from depthmup_flax.commands.app import main

if __name__ == "__main__":
    main()
