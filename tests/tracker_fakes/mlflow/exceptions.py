"""Part of the fake of MLflow."""


class MlflowException(Exception):  # noqa: N818 - its name there
    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def get_http_status_code(self) -> int:
        return 500 if self.error_code == "INTERNAL_ERROR" else 400
