"""What leaves dept for other people and their tools: models and adapters with a card, predictions in their formats."""
