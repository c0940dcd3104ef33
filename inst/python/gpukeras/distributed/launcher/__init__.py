"""Workers started as processes of this computer, and watched."""
