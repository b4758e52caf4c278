"""Programs are found by value."""

from audit.mechanism.ensemble import Programs


def test_equal_keys_share_a_program_and_others_do_not():
    made = []
    programs = Programs()

    def make():
        made.append(len(made))
        return made[-1]

    assert programs.get(("fcnn", 1), make) == programs.get(("fcnn", 1), make) == 0
    assert programs.get(("fcnn", 2), make) == 1
    assert programs.get(("fcnn", 1), make) == 0


def test_without_a_key_nothing_is_shared():
    programs = Programs()
    assert programs.get(None, object) is not programs.get(None, object)


def test_old_programs_make_room():
    programs = Programs(kept=2)
    first = programs.get(1, object)
    assert programs.get(1, object) is first
    programs.get(2, object), programs.get(3, object)
    assert programs.get(1, object) is not first
