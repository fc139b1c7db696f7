"""Is the gradient that of the loss? And where is it not?"""
